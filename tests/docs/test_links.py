"""Links lead somewhere, from every page."""

import re

import pytest

from tests.docs.pages import PAGES, anchors, path_of
from tests.web.screenshots import PAGES as PICTURED
from tests.web.screenshots import PICTURES


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_links_resolve_and_no_path_is_of_one_machine(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    assert not re.search(r"(?<![\w.])/(root|home|work|tmp)/", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_anchors_of_links_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#([\w-]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_pictures_are_shown_and_small():
    shown = "".join(page.read_text() for page in PAGES if page.suffix == ".md")
    pictures = sorted(PICTURES.glob("*.webp"))
    assert [picture.stem for picture in pictures] == sorted(f"web-{name}" for name in PICTURED)
    for picture in pictures:
        assert f"{picture.name})" in shown and picture.stat().st_size <= 60_000
