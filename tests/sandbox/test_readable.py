"""The default list for strict handlers has what programs need, and nothing that happens to lie beside it."""

import os
import sys

from supervisor.sandbox import readable


def test_list_has_interpreter_and_import_path_but_no_secrets():
    listed = readable.default_list()
    for needed in (sys.prefix, sys.base_prefix, os.__file__, "/usr/bin/env", "/dev/urandom", "/proc/self/status"):
        real = os.path.realpath(needed) if not needed.startswith("/proc") else needed
        assert any(readable.is_below(real, path) for path in listed), needed
    for secret in ("/etc/shadow", "/etc/ssl/private", "/run/secrets", "/var/lib", "/dev/sda", "/tmp", "/home"):
        assert not any(readable.is_below(secret, path) for path in listed), secret


def test_no_path_lies_below_another():
    assert readable.outermost(["/a/b", "/a", "/a-b", "/c/d", "/c/d/e"]) == ["/a", "/a-b", "/c/d"]


def test_wide_directory_gives_only_imported_modules(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "secrets").mkdir()
    monkeypatch.setattr(readable, "_TOO_WIDE", frozenset({str(tmp_path)}))
    monkeypatch.syspath_prepend(tmp_path)
    __import__("package")
    monkeypatch.delitem(sys.modules, "package", raising=False)
    listed = readable.default_list()
    assert str(tmp_path) not in listed
    monkeypatch.setitem(sys.modules, "package", type(sys)("package"))
    sys.modules["package"].__file__ = str(package / "__init__.py")
    listed = readable.default_list()
    assert str(package) in listed
    assert str(tmp_path / "secrets") not in listed


def test_hidden_paths_are_carved_out_anywhere(tmp_path):
    hidden = tmp_path / "app" / "deep" / ".leasehold"
    hidden.mkdir(parents=True)
    (tmp_path / "app" / "module.py").touch()
    (tmp_path / "app" / "deep" / "other").mkdir()
    (tmp_path / "app" / "deep" / "link").symlink_to(hidden)
    app = str(tmp_path / "app")
    assert list(readable.without_hidden([app], [str(hidden)])) == [
        (app, True),
        (f"{app}/deep", True),
        (f"{app}/deep/other", False),
        (f"{app}/module.py", False),
    ]
    assert list(readable.without_hidden([app], [str(tmp_path / "elsewhere")])) == [(app, False)]
    assert list(readable.without_hidden([str(hidden / "log")], [str(hidden)])) == []
