from __future__ import annotations

from typing import TYPE_CHECKING

from tools.images import pip

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_settings_that_mean_the_same_inside_a_build_are_carried(tmp_path: Path) -> None:
    file = write(
        tmp_path / "pip.conf",
        "[global]\nindex-url = https://u:p%40@index.example/simple\nfind-links = /opt/wheels\ncert = /etc/ca.pem\n"
        "[install]\nextra-index-url =\n    https://one.example\n    https://two.example\ntarget = /somewhere\n",
    )
    assert pip.configuration({}, [file]) == (
        "[global]\nindex-url = https://u:p%40@index.example/simple\nextra-index-url = https://one.example https://two.example\n"
    )


def test_later_files_and_the_environment_win(tmp_path: Path) -> None:
    first = write(tmp_path / "1", "[global]\nindex-url = https://one\ntimeout = 5\n")
    second = write(tmp_path / "2", "[global]\nindex-url = https://two\n")
    assert "index-url = https://two\ntimeout = 5" in pip.configuration({}, [first, second])
    assert "index-url = https://three" in pip.configuration({"PIP_INDEX_URL": "https://three"}, [first, second])


def test_uv_counts_where_pip_has_no_index(tmp_path: Path) -> None:
    file = write(tmp_path / "1", "[global]\nindex-url = https://one\n")
    environment = {"UV_DEFAULT_INDEX": "https://uv"}
    assert "index-url = https://uv" in pip.configuration(environment, [])
    assert "index-url = https://one" in pip.configuration(environment, [file])


def test_nothing_configured_is_an_empty_section(tmp_path: Path) -> None:
    assert pip.configuration({"PIP_FIND_LINKS": "/opt/wheels"}, [tmp_path / "absent"]) == "[global]\n"


def test_files_in_the_order_pip_reads_them(tmp_path: Path) -> None:
    actual = pip.files(
        {"PIP_CONFIG_FILE": "/x/pip.conf", "VIRTUAL_ENV": "/venv", "XDG_CONFIG_HOME": "/config"}, tmp_path
    )
    assert [str(path) for path in actual[-3:]] == ["/config/pip/pip.conf", "/venv/pip.conf", "/x/pip.conf"]
    assert actual[1] == tmp_path / ".pip" / "pip.conf"


def test_certificates_are_the_first_bundle_that_exists(tmp_path: Path) -> None:
    bundle = write(tmp_path / "ca.pem", "x")
    assert pip.certificates({"PIP_CERT": str(tmp_path / "absent"), "SSL_CERT_FILE": str(bundle)}) == bundle
