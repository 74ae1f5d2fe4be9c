"""Blocks that are taken out of the catalogue while somebody still holds them."""

from __future__ import annotations

from array import array

from akashic_daemon.tiers.catalogue import Catalogue


def test_who_lets_go_of_a_block_that_was_made_anew_meanwhile_takes_nothing_from_others() -> None:
    catalogue = Catalogue("f")
    root = catalogue.add(None, (), array("i", [1, 2]), 0, 0)
    root.on_ssd = True
    stale = catalogue.add(root, (), array("i", [3]), 2, 2)
    catalogue.drop_empty(stale)
    anew = catalogue.add(root, (), array("i", [3]), 2, 2)
    anew.on_ssd = True
    assert anew is not stale
    catalogue.drop_empty(stale)
    assert catalogue.get(anew.key) is anew
    assert root.children == [anew]


def test_an_empty_block_goes_with_the_ancestors_that_were_only_kept_for_it() -> None:
    catalogue = Catalogue("f")
    root = catalogue.add(None, (), array("i", [1]), 0, 0)
    leaf = catalogue.add(root, (), array("i", [2]), 1, 1)
    catalogue.drop_empty(leaf)
    assert catalogue.blocks() == []
