"""The command `leasehold` for many lines: one process has loaded it, and forks for each of them.

Each start of an interpreter would load the same modules anew, a third of a second every time. Nothing else differs: the
fork has the directory, the variables, the arguments and the descriptors of the one who calls, who ends as it does.
"""

import array
import json
import os
import signal
import socket
import sys
import traceback

_MOST_BYTES = 256 * 1024
_FDS = 3


def call(path: str, arguments: list[str]) -> int:
    """Have the warm process run a command, and return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        server.connect(path)
        said = json.dumps([os.getcwd(), dict(os.environ), arguments]).encode()
        fds = array.array("i", range(_FDS))
        server.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        return int(server.recv(16))


def serve(path: str) -> None:
    """Run commands in forks until it is killed. One byte on stdout says that it can be called."""
    from importlib import import_module

    from supervisor.cli.lib.parser import COMMANDS

    for module, _ in COMMANDS.values():
        import_module(f"supervisor.cli.{module}")
    for name in ("supervisor.engine.client.sync_client", "redis", "rich.console", "rich.table"):
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"!")
        while True:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _carry_out(caller)
            caller.close()


def _carry_out(caller: socket.socket) -> None:
    from supervisor.__main__ import main

    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        said, fds, _, _ = socket.recv_fds(caller, _MOST_BYTES, _FDS)
        directory, variables, arguments = json.loads(said)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["leasehold", *arguments]
        try:
            code = main()
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        caller.send(b"%d" % code)
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
