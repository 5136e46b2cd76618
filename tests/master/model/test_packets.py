"""One call receives many packets in their order, with their descriptors."""

import errno
import os
import socket

import pytest

from supervisor.linux import kernel
from supervisor.master.model import packets
from supervisor.messages import MAX_PACKET_BYTES
from tests.parts import no_free_descriptor, open_fds


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    before = open_fds()
    yield ours, theirs
    ours.close()
    theirs.close()
    assert open_fds() == before - 2, "a descriptor is left open"


def read(sock, most=1024):
    return [packet for packet, _fd in packets.receive(sock, most)]


def test_nothing_is_read_from_an_empty_socket(pair):
    assert read(pair[0]) == []


def test_packets_come_in_their_order(pair):
    ours, theirs = pair
    sent = [b"%d" % i * (1 + i % 7) for i in range(200)]
    for packet in sent:
        theirs.send(packet)
    assert read(ours) == sent
    assert read(ours) == []


def test_no_more_calls_than_needed(pair):
    ours, theirs = pair
    for i in range(200):
        theirs.send(b"%d" % i)
    first = read(ours, most=1)
    assert 0 < len(first) < 200
    assert first + read(ours) == [b"%d" % i for i in range(200)]


def test_last_packet_comes_before_the_end(pair):
    ours, theirs = pair
    theirs.send(b"last")
    theirs.shutdown(socket.SHUT_WR)
    assert read(ours)[:2] == [b"last", b""]


def test_last_packet_comes_though_the_sender_left_ours_unread(pair):
    ours, theirs = pair
    ours.send(b"unread")
    theirs.send(b"last")
    theirs.close()
    assert read(ours)[:2] == [b"last", b""]


def test_more_packets_than_expected_come(pair):
    ours, theirs = pair
    sent = [f"{n}".encode() for n in range(100)]
    for packet in sent:
        theirs.send(packet)
    assert [packet for packet, _fd in packets.receive(ours, 1024, 1)] == sent


def test_descriptor_comes_with_its_packet_and_closes_on_exec(pair):
    ours, theirs = pair
    with open(os.devnull) as null:
        theirs.send(b"without")
        kernel.send(theirs, b"with", (null.fileno(),))
        theirs.send(b"after")
    (first, no_fd), (second, fd), (third, none) = packets.receive(ours, 1024)
    assert (first, second, third) == (b"without", b"with", b"after")
    assert no_fd == none == -1
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_packet_not_taken_leaks_no_descriptor(pair):
    ours, theirs = pair
    with open(os.devnull) as null:
        for _ in range(5):
            kernel.send(theirs, b"with", (null.fileno(),))
    with pytest.raises(RuntimeError):
        for _packet, fd in packets.receive(ours, 1024):
            os.close(fd)
            raise RuntimeError


def test_packet_tells_that_its_descriptor_is_lost(pair):
    ours, theirs = pair
    with open(os.devnull) as null:
        kernel.send(theirs, b"with", (null.fileno(),))
        theirs.send(b"after")
    with no_free_descriptor():
        assert list(packets.receive(ours, 1024)) == [(b"with", packets.LOST_FD), (b"after", packets.NO_FD)]


@pytest.mark.parametrize("count", [2, kernel.MOST_RIGHTS])
def test_packet_with_several_descriptors_is_an_error(pair, count):
    ours, theirs = pair
    with open(os.devnull) as null:
        kernel.send(theirs, b"many", (null.fileno(),) * count)
    with pytest.raises(OSError, match=f"{count} descriptors"):
        read(ours)


def test_too_long_packet_is_an_error_after_earlier_ones(pair):
    ours, theirs = pair
    theirs.send(b"before")
    with open(os.devnull) as null:
        kernel.send(theirs, b"x" * (MAX_PACKET_BYTES + 1), (null.fileno(),))
    coming = packets.receive(ours, 1024)
    assert next(coming)[0] == b"before"
    with pytest.raises(OSError) as error:
        next(coming)
    assert error.value.errno == errno.EMSGSIZE


def test_large_packets_do_not_stay_in_memory(pair):
    ours, theirs = pair
    packet = bytes(range(256)) * (MAX_PACKET_BYTES // 256)
    before = resident_bytes()
    for _ in range(40):
        for _ in range(4):
            theirs.send(packet)
        assert read(ours) == [packet] * 4
    assert resident_bytes() - before < 8 * 2**20
    theirs.send(b"small")
    assert read(ours) == [b"small"]


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
