"""A browser drives every page, at the widths of a desk and of a phone, and acts."""

import json

import pytest

from tests.web.browser import AXE, MARKS, browsing
from tests.web.conftest import HOSTILE, TOKENS
from tests.web.test_pages import PATHS

pytestmark = MARKS


def test_every_page_fits_and_says_no_error(filled, address, browser):
    filled.queue(HOSTILE).put(HOSTILE, {HOSTILE: HOSTILE}, jid=HOSTILE, tags=[HOSTILE], lane=HOSTILE)
    filled.queue("q" * 64).put("k" * 64, {"text": "x" * 5000}, jid="j" * 64, tags=["t" * 64])
    long = [f"/job?jid={'j' * 64}", f"/queue?queue={'q' * 64}", f"/jobs?queue={'q' * 64}", "/search?q=nobody"]
    for width in (1280, 390):
        browser.resize(width)
        for path in [*PATHS, *long]:
            browser.open(address + path)
            wide = browser.value("document.documentElement.scrollWidth")
            assert wide <= width, (path, width, wide)
            assert browser.value("document.querySelectorAll('h1').length") == 1, path
            unnamed = "[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a')]"
            unnamed += ".filter(e => !(e.ariaLabel || e.innerText || e.labels?.length || e.textContent)).length"
            assert browser.value(unnamed) == 0, path
    assert [fault for fault in browser.faults if "404" not in fault] == []


@pytest.mark.skipif(AXE is None, reason="axe is not there: pip install --no-deps axe-playwright-python")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(filled, address, browser, width, theme):
    filled.queue("quiet").put("k" * 64, {"text": "x" * 5000}, jid="j" * 64, tags=["t" * 64])
    browser.prefer(theme)
    browser.resize(width)
    errors = ["/job?jid=nobody", "/jobs?state=sleeping&queue=q", "/nothing"]
    found = []
    for path in [*PATHS, "/jobs?group=ValueError", f"/job?jid={'j' * 64}", "/job?jid=broken", *errors]:
        browser.open(address + path)
        found += axe(browser)
    browser.open(f"{address}/events")
    browser.wait_for("listening")
    filled.queue("mail").put("email.send", {}, jid="just-put")
    browser.wait_for("just-put")
    found += axe(browser)
    browser.open(f"{address}/jobs?queue=mail")
    browser.value("document.querySelector('.acts form [name=into]').value = 'other'")
    browser.submit(".acts form:has([name=into])")
    browser.wait_for("Nothing is changed yet.")
    found += axe(browser)
    browser.submit("form.logout")
    found += axe(browser)
    browser.log_in(address, "x" * 20)
    found += axe(browser)
    assert found == [], "\n".join(found)


def axe(browser):
    """Return what axe finds on the page that is shown."""
    browser.value(AXE.read_text())
    found = browser.value("axe.run().then(found => JSON.stringify([location.pathname, found.violations]))")
    path, violations = json.loads(found)
    return [
        f"{path} {each['id']}: {node['html']:.200} {node['failureSummary']:.300}"
        for each in violations
        for node in each["nodes"][:3]
    ]


def test_a_token_can_be_seen_while_it_is_typed(address):
    with browsing() as browser:
        browser.open(f"{address}/login")
        kinds = []
        for _ in range(3):
            kinds.append(browser.value("document.querySelector('#token').type"))
            browser.value("document.querySelector('[data-show]').click()")
        assert kinds == ["password", "text", "password"]


@pytest.mark.parametrize("path", ["/job?jid=first", "/overview", "/events"])
def test_a_logout_leaves_nothing_on_the_screen(filled, address, browser, path):
    """Neither on the way back, nor in another tab, which here is this page while its session ends elsewhere."""
    browser.open(address + path)
    assert "Log out" in browser.value("document.body.innerText")
    browser.submit("form.logout")
    browser.value("history.back()")
    browser.wait_for_address(f"{address}/login")
    assert set(browser.value("Object.keys({...localStorage, ...sessionStorage})")) <= {"theme"}

    browser.log_in(address, TOKENS["operator"])
    browser.open(address + path)
    browser.value(f"fetch('{address}/logout', {{method: 'POST', redirect: 'manual'}}).then(() => 0)")
    browser.value("document.dispatchEvent(new Event('visibilitychange'))")
    browser.wait_for_address(f"{address}/login")


def test_an_operator_acts_on_all_that_match(filled, address, browser):
    filled.queue("many").put_many({"klass": "k"} for _ in range(300))
    browser.open(f"{address}/jobs?queue=many")
    browser.value("document.querySelector('.acts form [name=into]').value = 'other'")
    browser.submit(".acts form:has([name=into])")
    browser.wait_for("300 jobs. Nothing is changed yet.")
    browser.submit("form[action$=start_bulk]")
    browser.wait_for("moved 300 jobs into queue other")
    assert len(filled.queue("other")) == 300


#: Counts the times at which a live page would look again, and lets it do so sooner.
COUNT_LOOKS = """
window.looks = 0;
const wait = window.setTimeout;
window.setTimeout = (look, ms) => { window.looks += 1; return wait(look, Math.min(ms, 50)); };
"""


@pytest.mark.parametrize(
    ("edit", "leave"),
    [
        ("[name=confirm]').value = 'ma'", "[name=confirm]').value = ''"),
        ("[name=stop]').checked = true", "[name=stop]').checked = false"),
    ],
)
def test_a_form_that_is_written_in_stays_while_its_page_looks_again(filled, address, browser, edit, leave):
    waiting = "document.querySelector('.figures dd').innerText"
    browser.open(f"{address}/queue?queue=mail")
    before = browser.value(waiting)
    browser.value(f"document.querySelector('.acts {edit}")
    browser.value(COUNT_LOOKS)
    filled.queue("mail").put("email.send", {})
    browser.wait_until("looks > 3")
    assert browser.value(waiting) == before
    browser.value(f"document.querySelector('.acts {leave}")
    browser.wait_until(f"{waiting} === '{int(before) + 1}'")
