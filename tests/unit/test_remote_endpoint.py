"""Where a remote model is, and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from akashic_daemon.errors import BadRequest, ConfigError
from akashic_daemon.remote.endpoint import Endpoint, parse_url


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("https://host", "https://host/v1"),
        ("http://host/", "http://host/v1"),
        ("http://host/router/v1/", "http://host/router/v1"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
    ],
)
def test_what_people_type_becomes_the_base_of_the_api(typed: str, url: str) -> None:
    assert parse_url(typed) == url


@pytest.mark.parametrize("typed", ["", "ftp://host", "http://", "http://u:p@host", "http://h/v1?key=1", "http://h:x"])
def test_what_is_no_plain_url_is_refused(typed: str) -> None:
    with pytest.raises(BadRequest):
        parse_url(typed)


def test_an_endpoint_is_stored_without_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sekret\n")
    key.chmod(0o600)
    endpoint = Endpoint("http://h/v1", "m", 4096, key_file=str(key))
    assert Endpoint.from_json(endpoint.to_json()) == endpoint
    assert "sekret" not in endpoint.to_json()
    assert endpoint.key() == "sekret"


def test_a_key_that_others_may_read_is_refused_with_the_mend(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sekret")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        Endpoint("http://h/v1", key_file=str(key)).key()
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "two\nlines"])
def test_a_key_file_is_one_line(tmp_path: Path, text: str) -> None:
    key = tmp_path / "key"
    key.write_text(text)
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="isn't one line"):
        Endpoint("http://h/v1", key_file=str(key)).key()


def test_a_key_in_the_environment_is_named_when_it_is_missing() -> None:
    endpoint = Endpoint("http://h/v1", key_env="UPSTREAM_KEY")
    assert endpoint.key({"UPSTREAM_KEY": " k "}) == "k"
    with pytest.raises(ConfigError, match="UPSTREAM_KEY"):
        endpoint.key({})
    assert Endpoint("http://h/v1").key({}) is None
