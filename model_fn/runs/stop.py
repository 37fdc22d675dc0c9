"""The one object that says that a run is to end, and why."""

from __future__ import annotations

from typing import List, Optional


class Stop:
    """Set by signals, hooks, other tasks and the mark of the end; whoever waits looks at it."""

    def __init__(self) -> None:
        # Without a lock: a signal handler interrupts the thread that would hold it.
        self._requests: List[Optional[BaseException]] = []

    @property
    def is_requested(self) -> bool:
        """True if the run is to end after the current step."""
        return bool(self._requests)

    @property
    def cause(self) -> Optional[BaseException]:
        """First error among the requests; None for a plain end, by a hook for example."""
        return next((request for request in self._requests if request is not None), None)

    def request(self, cause: Optional[BaseException] = None) -> None:
        """Ends the run after the current step, and then by the error, if there is one."""
        self._requests.append(cause)

    def raise_if_requested(self) -> None:
        """Raises the cause, if there is one."""
        if self.cause is not None:
            raise self.cause
