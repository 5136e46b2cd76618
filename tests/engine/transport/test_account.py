"""The account comes from a URL, from files, or from a function, which may all fail in their own ways."""

import os
import threading

import pytest

from supervisor.engine.transport import credentials
from supervisor.engine.transport.account import NoAccount, account_of, account_of_sentinels
from supervisor.engine.transport.credentials import AskedAccount


@pytest.mark.parametrize(
    ("text", "password"),
    [("geheim", "geheim"), ("geheim\n", "geheim"), ("geheim\r\n", "geheim"), (" ge heim ", " ge heim "), ("é", "é")],
)
def test_password_is_the_text_of_its_file_without_the_end_of_line(tmp_path, text, password):
    path = tmp_path / "password"
    path.write_bytes(text.encode())
    assert account_of(f"redis://app@h?password_file={path}") == ("app", password)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.touch(), "is empty"),
        (lambda path: path.write_text("\n"), "is empty"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8"),
        (lambda path: path.write_bytes(b"x" * 65537), "has more than 65536 bytes"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    ],
)
def test_file_without_a_password_is_explained(tmp_path, made, why):
    path = tmp_path / "password"
    made(path)
    with pytest.raises(NoAccount, match=f"^password_file {path} {why}"):
        account_of(f"redis://h?password_file={path}")


def test_account_of_the_sentinels_is_apart_from_that_of_the_servers(tmp_path):
    (tmp_path / "password").write_text("ours\n")
    url = f"redis+sentinel://u:theirs@h/m?sentinel_username=s&sentinel_password_file={tmp_path / 'password'}"
    assert (account_of(url), account_of_sentinels(url)) == (("u", "theirs"), ("s", "ours"))


class Provider:
    def get_credentials(self):
        return "app", "token"


@pytest.mark.parametrize(
    ("given", "account"),
    [("token", ("", "token")), (("token",), ("", "token")), (("a", "b"), ("a", "b")), (Provider(), ("app", "token"))],
)
def test_function_returns_an_account_in_each_usual_form(given, account):
    assert AskedAccount(lambda: given, "f")() == account


@pytest.mark.parametrize("given", [None, 7, b"token", ["a", "b"], (), ("a", "b", "c"), ("a", None), {"a": "b"}])
def test_function_that_returns_anything_else_is_explained(given):
    with pytest.raises(NoAccount, match=r"^f must return \(user, password\), a password, or a provider of redis-py"):
        AskedAccount(lambda: given, "f")()


def test_function_that_returns_what_cannot_be_sent_is_explained():
    with pytest.raises(NoAccount, match=r"^f has returned text that cannot be sent"):
        AskedAccount(lambda: ("user", "geheim\udc80"), "f")()


@pytest.mark.parametrize("error", [RuntimeError("geheim"), SystemExit(3), KeyboardInterrupt(), TimeoutError()])
def test_function_that_raises_is_named_without_its_words(error):
    def fail():
        raise error

    with pytest.raises(NoAccount, match=f"^f has failed: {type(error).__name__}$"):
        AskedAccount(fail, "f")()


def test_function_that_hangs_is_not_called_a_second_time(monkeypatch):
    monkeypatch.setattr(credentials, "_PATIENCE_S", 0.05)
    gate, calls = threading.Event(), []

    def hang():
        calls.append(1)
        gate.wait(60)
        return "token"

    asked = AskedAccount(hang, "f")
    for _ in range(3):
        with pytest.raises(NoAccount, match=r"^f has not returned within 0\.05 s$"):
            asked()
    assert len(calls) == 1
    monkeypatch.setattr(credentials, "_PATIENCE_S", 60)
    gate.set()
    assert asked() == ("", "token")


def test_function_is_called_as_soon_as_a_thread_can_start(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    asked = AskedAccount(lambda: "token", "f")
    with monkeypatch.context() as used_up:
        used_up.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(NoAccount, match=r"^f cannot be called: can't start new thread$"):
                asked()
    assert asked() == ("", "token")
