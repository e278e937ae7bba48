"""No error of an archive, and nothing that is noted of it, holds a secret of its URL."""

import traceback

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from harvest_lib.archive import ArchiveFiles, verify_archive
from harvest_lib.archive.urls import shown, without_secrets
from harvest_lib.errors import ArchiveError

pytestmark = pytest.mark.quick

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/srv/archive/orders", "/srv/archive/orders"),
        ("archive:2026@home/orders", "archive:2026@home/orders"),
        ("file:///srv/a@b:c/orders", "file:///srv/a@b:c/orders"),
        ("s3://bucket/orders", "s3://bucket/orders"),
        (f"s3://AKIA:{SECRET}@bucket/orders", "s3://bucket/orders"),
        (f"s3://AKIA:{SECRET}/with/slash@bucket/orders", "s3://bucket/orders"),
        (f"s3://AKIA:{SECRET}@at@bucket/orders", "s3://bucket/orders"),
        (f"S3://AKIA:{SECRET}@bucket/orders", "S3://bucket/orders"),
        (f"https://{SECRET}@host/orders", "https://host/orders"),
        (f"https://host/orders?sv=2026&sig={SECRET}", "https://host/orders?sv=***&sig=***"),
        (f"https://host/orders?{SECRET}", "https://host/orders?***"),
        (f"sftp://me:{SECRET}@host:22/orders", "sftp://host:22/orders"),
        ("sftp://me@host:22/orders@home", "sftp://me@host:22/orders@home"),
        ("sftp://host:22/orders@home", "sftp://host:22/orders@home"),
        (
            "abfs://container@account.dfs.core.windows.net/orders",
            "abfs://container@account.dfs.core.windows.net/orders",
        ),
        (f"simplecache::s3://AKIA:{SECRET}@bucket/orders", "simplecache::s3://bucket/orders"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, expected):
    assert shown(url) == expected
    assert shown(expected) == expected
    assert SECRET not in without_secrets(f"cannot open {url}", url)
    if SECRET in url:
        assert SECRET not in without_secrets(f"{SECRET} is refused", url)


def test_secrets_are_hidden_as_libraries_decode_them():
    assert "p@ss/word" not in without_secrets("user a, password p@ss/word", "ftp://a:p%40ss%2Fword@host/x")


class Refusing(MemoryFileSystem):
    protocol = "refusing"

    def _refuse(self, *_, **__):
        raise self.storage_options["error"](f"no {URL} for {SECRET}")

    cat_file = glob = _open = _refuse

    @classmethod
    def _get_kwargs_from_urls(cls, _):
        return {"error": cls.error}


URL = f"refusing://AKIA:{SECRET}@bucket/orders?token={SECRET}"


def texts(call):
    with pytest.raises(ArchiveError) as refused:
        call()
    return "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("error", [OSError, PermissionError, FileNotFoundError, RuntimeError])
@pytest.mark.parametrize(
    "call", [lambda files: files.claim("i", "o"), lambda files: files.manifests(), lambda files: files.opened("x")]
)
def test_what_a_file_system_answers_is_shown_without_them(error, call):
    Refusing.error = error
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    files = ArchiveFiles(URL)
    assert files.url == "refusing://bucket/orders?token=***"

    def run():
        found = call(files)
        if hasattr(found, "__enter__"):
            with found:
                pass

    assert SECRET not in texts(run)
    assert SECRET not in texts(lambda: list(verify_archive(URL)))


def test_a_url_that_no_file_system_takes_is_shown_without_them():
    said = texts(lambda: ArchiveFiles(f"nosuch://AKIA:{SECRET}@bucket/orders"))
    assert SECRET not in said
    assert "nosuch://bucket/orders" in said
