"""Tags, tracking, and lines in a job's history."""

import pytest


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


def test_tags_are_added_shown_and_taken_off(shell, queue):
    queue.put("k", jid="j")
    assert shell.line("tag", "j") == "j has no tags"
    assert shell.line("tag", "j", "red", "blue") == "j has red blue"
    assert shell.json("tag", "j") == {"jid": "j", "tags": ["red", "blue"]}
    assert shell.line("tag", "j", "red", "--remove") == "j has blue"
    assert shell.line("tag", "j", "blue", "green", "--remove") == "j has no tags"


def test_the_jobs_of_a_tag_are_listed_oldest_tagged_first_in_pages(shell, queue):
    for jid in ("a", "b", "c"):
        queue.put("k", jid=jid, tags=["red"])
    seen = shell.json("tag", "--get", "red", "--count", "2")
    assert (seen["tag"], seen["total"], seen["offset"]) == ("red", 3, 0)
    assert [job["jid"] for job in seen["jobs"]] == ["a", "b"]
    said = shell("tag", "--get", "red", "--offset", "1", "--count", "1")
    assert "b " in said.out and said.err == "leasehold: 1 of 3 jobs with the tag red\n"
    assert shell.noted("tag", "--get", "rde") == "no job has the tag rde, did you mean red?"
    assert shell.noted("tag", "--get", "red", "--offset", "3") == "3 jobs have the tag red"


def test_tag_alone_lists_the_most_used(shell, queue):
    assert shell.noted("tag") == "no job has a tag"
    queue.put("k", tags=["red", "blue"])
    queue.put("k", tags=["red"])
    queue.put("k", tags=["red", "blue", "green"])
    seen = shell.json("tag", "--count", "2")
    assert seen == [{"tag": "red", "jobs": 3}, {"tag": "blue", "jobs": 2}]
    assert shell.rows("tag", "--count", "1") == [["tag", "jobs"], ["red", "3"]]
    assert shell.noted("tag", "--offset", "9") == "there are not more than 9 tags"


def test_track_lists_tracked_and_expired_jobs(shell, jobs, queue):
    assert shell.noted("track") == "no job is tracked"
    for jid in ("a", "b"):
        queue.put("k", jid=jid)
    assert shell.line("track", "a", "b") == "tracking a b"
    jobs.cancel("b")
    seen = shell.json("track")
    assert [job["jid"] for job in seen["jobs"]] == ["a"] and seen["expired"] == ["b"]
    said = shell("track")
    assert "a " in said.out and said.err == "leasehold: tracked, but gone: b\n"
    assert shell.line("track", "b", "a", "--off") == "no longer tracking b a"
    assert shell.json("track") == {"jobs": [], "expired": []}


def test_untracking_what_is_not_tracked_is_1(shell, queue):
    queue.put("k", jid="a")
    queue.put("k", jid="b")
    shell.line("track", "a")
    said = shell("track", "a", "b", "--off")
    assert (said.code, said.out, said.err) == (1, "no longer tracking a\n", "leasehold: not tracked: b\n")


def test_nothing_is_tracked_if_one_of_the_jids_is_wrong(shell, queue):
    queue.put("k", jid="a")
    assert shell.refused(1, "track", "a", "nobody") == "there is no job nobody"
    assert shell.json("track")["jobs"] == []


def test_a_line_in_the_log_is_in_the_history(shell, jobs, queue):
    queue.put("k", jid="j")
    assert shell.line("log", "j", "the customer called") == "written into the history of j"
    shell.line("log", "j", "again", "--data", '{"by": "ada"}')
    first, second = jobs.job("j").log
    assert first["message"] == "the customer called" and "data" not in first
    assert (second["message"], second["data"]) == ("again", {"by": "ada"})
