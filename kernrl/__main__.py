"""The console script, and `python -m kernrl`. It listens to signals before it loads anything."""

import threading

from kernrl.signals import INTERRUPTED, handle_signals, leave


def main() -> None:
    """Run the command line of this process."""
    handle_signals()
    from kernrl.cli import main as run

    try:
        run()
    except SystemExit as ended:
        if isinstance(ended.code, int) and (ended.code == INTERRUPTED or any(t.daemon for t in threading.enumerate())):
            leave(ended.code)
        raise


if __name__ == "__main__":
    main()
