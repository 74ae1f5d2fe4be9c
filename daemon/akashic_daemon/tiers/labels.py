"""Looking for stored blocks that will never be found: labels that don't say what their keys do, and parents that are gone.

The block store guards bytes; what a label means only the catalogue knows. So every label of every model is taken into a
catalogue that is thrown away.
"""

from __future__ import annotations

from akashic_daemon.store.blocks.check import Finding, Kind
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.ssd import SsdTier

_WRONG = "its label is damaged: it doesn't lead to its key"
_ORPHAN = "the block that it goes on from isn't stored, so that no path leads to it"


def check_labels(ssd: SsdTier, running: Catalogue | None) -> dict[str, Finding]:
    """Return what is wrong, by the block's key. Raises StoreError.

    running: what the loaded model's sessions still lead to, though the way there is to be computed again, is no orphan.
    """
    found: dict[str, Finding] = {}
    for fingerprint in ssd.fingerprints():
        stored = ssd.labels(fingerprint, as_they_are=True)
        loaded = Catalogue(fingerprint).load((s.key, s.label, s.size_bytes) for s in stored)
        found |= {key: Finding(Kind.WRONG_LABEL, f"record {key}", _WRONG) for key in loaded.damaged}
        lost = (key for key in loaded.orphans if running is None or running.get(key) is None)
        found |= {key: Finding(Kind.ORPHAN, f"record {key}", _ORPHAN) for key in lost}
    return found
