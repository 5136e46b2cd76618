"""The application of the pages for those who come from another queue. Each call is a line of the file SHOP_DIARY."""

import os
from pathlib import Path


def send_mail(user, template):
    if user == 7 and _is_first_mail():
        _note("refused 7")
        raise ConnectionError("the mail server refuses the first mail")
    _note(f"mail {user} {template}")


def shrink(photo):
    _note(f"shrunk {photo}")
    return len(photo)


def make_album(user, sizes):
    _note(f"album {user} {sizes}")


def _is_first_mail():
    try:
        Path(f"{os.environ['SHOP_DIARY']}-begun").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _note(line):
    with open(os.environ["SHOP_DIARY"], "a") as diary:
        diary.write(f"{line}\n")
