"""Names the working directories of children. Runs in master, zygote and child."""


def zygote_directory(workdir: str, zygote: int) -> str:
    """Return the directory that holds the working directories of a zygote's children. `workdir`: the master's."""
    return f"{workdir}/zygote-{zygote}"


def child_directory(of_zygote: str, child: int) -> str:
    """Return the working directory of a child, which the child makes itself. `of_zygote`: its zygote's directory."""
    return f"{of_zygote}/child-{child}"
