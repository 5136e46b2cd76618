"""Plays the master of jobs that share a child: the other end of their socket, and the loop that they run in."""

import asyncio
import socket

from supervisor import messages
from supervisor.child.shared_talk import SharedTalk


class SharedStage:
    """Both ends of the socket. A stage of some part of the child says by `take` what an answer is for."""

    def __init__(self, loop, runs):
        """`runs`: by token."""
        self.master, self._talk = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.runs = runs
        self.shared = SharedTalk(loop, self._talk, self.read)

    def read(self):
        packet = self._talk.recv(messages.MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        if packet:
            self.take(messages.unpack_word(packet))
        else:
            self.shared.at_end = True

    def said(self):
        """Return the next outcome that the child has sent."""
        return messages.unpack_outcome(self.master.recv(messages.MAX_PACKET_BYTES, socket.MSG_DONTWAIT))

    def close(self):
        self.master.close()
        self._talk.close()


def play_on(stage_of, play):
    """Play on a stage: `stage_of(loop)`."""

    async def main():
        stage = stage_of(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(60):
                await play(stage)
        finally:
            stage.close()

    asyncio.run(main())
