"""The folder for downloads of the set-up, the certificates it trusts, and what cleaning leaves."""

import functools
import http.server
import os
import ssl
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import trustme
from support.installed import find_uv

from harvest_lib.local_stack.state import default_state, download_cache

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
OURS = ("HARVEST_CACHE", "XDG_CACHE_HOME", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS")


def without_ours():
    return {name: value for name, value in os.environ.items() if name not in OURS}


def shell(script, *arguments, **variables):
    """Run a script of set-up with these variables and no others of its own."""
    return subprocess.run(
        ["sh", INFRA / script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**without_ours(), **variables},
    )


@pytest.fixture
def folders(tmp_path):
    for name in ("home", "other", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({"HARVEST_CACHE": "named", "HOME": "home", "XDG_CACHE_HOME": "other"}, "named"),
        ({"HOME": "home", "XDG_CACHE_HOME": "other"}, "other/harvest"),
        ({"HOME": "home"}, "home/.cache/harvest"),
        ({"HOME": "missing"}, "state/cache"),
        ({"HOME": "home", "XDG_CACHE_HOME": "file"}, "state/cache"),
        ({}, "state/cache"),
    ],
)
def test_shell_and_python_keep_downloads_in_one_folder(folders, monkeypatch, variables, chosen):
    places = {name: str(folders / folder) for name, folder in variables.items()}
    said = shell("downloads.sh", "cache", folders / "state", **places)
    assert said.stdout == f"{folders / chosen}\n"
    assert ("are kept in" in said.stderr) == (chosen == "state/cache"), "the fallback is said, and nothing else"
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    assert download_cache(folders / "state") == folders / chosen
    assert not (folders / chosen).exists(), "nothing is written before there is a download"


def test_a_cache_folder_of_the_environment_is_relative_to_the_project(folders):
    assert shell("downloads.sh", "cache", "state", HARVEST_CACHE="here").stdout == f"{Path.cwd()}/here\n"


@pytest.fixture
def exported(folders):
    """Return what the Makefile exports, with these variables of the user's."""
    (folders / "print.mk").write_text("print:\n\t@env\n")

    def run(**variables):
        made = subprocess.run(
            ["make", "-s", "-f", "Makefile", "-f", folders / "print.mk", "print"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            env={**{name: value for name, value in without_ours().items() if name != "UV_CACHE_DIR"}, **variables},
        )
        return dict(line.split("=", 1) for line in made.stdout.splitlines() if "=" in line)

    return run


def test_make_exports_what_the_user_has_not_set(exported, folders):
    (folders / "ca.pem").write_text("an authority\n")
    found = exported(HOME=str(folders / "home"), SSL_CERT_FILE=str(folders / "ca.pem"))
    assert found["UV_CACHE_DIR"] == f"{found['HARVEST_CACHE']}/uv" == f"{folders}/home/.cache/harvest/uv"
    assert found["UV_SYSTEM_CERTS"] == "true"


def test_make_leaves_what_the_user_has_set(exported, folders):
    found = exported(HOME=str(folders / "home"), UV_CACHE_DIR="/mine", UV_SYSTEM_CERTS="false")
    assert (found["UV_CACHE_DIR"], found["UV_SYSTEM_CERTS"]) == ("/mine", "false")
    assert "UV_SYSTEM_CERTS" not in exported(HOME=str(folders / "home"), UV_NATIVE_TLS="false")


class Index(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture
def company(tmp_path):
    """An index of packages behind a certificate that only a company's authority has signed, with one package."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    pages = tmp_path / "index" / "tiny"
    pages.mkdir(parents=True)
    with zipfile.ZipFile(pages / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        about = "tiny-1.0.dist-info"
        wheel.writestr("tiny.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "".join(f"{each},,\n" for each in [*wheel.namelist(), f"{about}/RECORD"]))
    (pages / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny</a>')
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    handler = functools.partial(Index, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # a client that does not trust us ends the connection
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def install(company, tmp_path):
    """Return a function that has uv install the package, by a command before it and with variables."""

    def run(*before, **variables):
        home = {**without_ours(), "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_RETRIES": "0"}
        command = [find_uv(default_state()), "pip", "install", "--no-config", "--python", sys.executable]
        return subprocess.run(
            [*before, *command, "--target", tmp_path / "target", "--no-deps", "--default-index", company, "tiny"],
            check=False,
            capture_output=True,
            text=True,
            env={**home, **variables},
        )

    return run


def test_uv_trusts_the_bundle_that_pip_is_named(install, tmp_path, exported):
    refused = install()
    assert refused.returncode != 0
    assert "UnknownIssuer" in refused.stderr
    bundle = str(tmp_path / "authority.pem")
    setting = exported(HOME=str(tmp_path), SSL_CERT_FILE=bundle)["UV_SYSTEM_CERTS"]
    done = install(UV_SYSTEM_CERTS=setting, SSL_CERT_FILE=bundle)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "tiny.py").exists()


def test_uv_trusts_what_was_installed_into_the_machine(install, tmp_path):
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    own_view = ["unshare", "--map-root-user", "--mount"]
    if not system.exists() or subprocess.run([*own_view, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no bundle of Debian's, or no mount of one's own")
    (tmp_path / "bundle.pem").write_bytes(system.read_bytes() + (tmp_path / "authority.pem").read_bytes())
    machine = [*own_view, "sh", "-c", f'mount --bind {tmp_path}/bundle.pem {system} && exec "$@"', "sh"]
    assert "UnknownIssuer" in install(*machine).stderr
    done = install(*machine, UV_SYSTEM_CERTS="true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "tiny.py").exists()


def test_cleaning_leaves_a_folder_that_was_there_before_set_up(folders):
    state, cache = folders / "state", folders / "home"
    (state / "photo.jpg").write_bytes(b"theirs")
    done = subprocess.run(
        ["sh", INFRA / "clean.sh", state, cache], cwd=folders, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{state} is not removed" in done.stderr
    assert (state / "photo.jpg").exists()


def test_cleaning_says_what_it_frees_and_what_stays(folders):
    state, cache = folders / "state", folders / "home"
    (state / ".harvest-state").touch()
    (state / "large").write_bytes(bytes(3 << 20))
    (cache / "jar").write_bytes(bytes(2 << 20))
    said = subprocess.run(
        ["sh", INFRA / "clean.sh", state, cache], cwd=folders, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == [f"removed {state}", f"kept {cache}"]
    assert "3 MB" in said[0]
    assert "2 MB" in said[1]
    assert said[1].endswith(f"rm -rf '{cache}'")
    assert not state.exists()
    assert (cache / "jar").exists()
