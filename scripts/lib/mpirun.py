"""mpirun of Debian's Open MPI: as root, too, and with more ranks than cores."""
import tempfile

SHARED_MEMORY = {"pml": "ob1", "btl": "vader,self"}
TCP = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}


def over_hosts(agent, interface):
    """TCP between the interfaces of that name of several hosts; `agent HOST COMMAND` runs commands
    there. Ranks that wait give their core away, which other hosts' ranks share.

    By default two large messages in opposite directions go one after the other: what starts the
    second waits behind the first. So they are sent, not put (flags 1), from small buffers."""
    return {**TCP, "btl_tcp_if_include": interface, "oob_tcp_if_include": interface,
            "btl_tcp_flags": 1, "btl_tcp_sndbuf": 1 << 15, "plm_rsh_agent": agent,
            "mpi_yield_when_idle": 1}


def parameters(settings):
    """Parameters of Open MPI as words of its command line."""
    return [word for name, value in settings.items() for word in ("--mca", name, value)]


def command(place, settings, *words):
    """What it leaves behind goes below the directory `place`, for each command elsewhere: two that
    start at once fail where both make the same directory."""
    own = tempfile.mkdtemp(prefix="m", dir=place)
    return ["mpirun", "--allow-run-as-root", "--oversubscribe",
            *parameters({**settings, "orte_tmpdir_base": own}), *words]
