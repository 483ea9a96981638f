"""Several forwards side by side, all halted before the same layer.

A layer is to be corrected on what the corrected layers before it give, for every batch.  Running the model
once more for each layer would take as many passes as there are layers; here each batch runs once, in a thread
of its own, of which never two are at work at a time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from iglu.model_runner import first_tensor


class _Left(BaseException):
    """Ends a forward that is no longer needed; not an Exception, which a model might catch."""


_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "mtia", "hpu", "xla", "maia", "ipu", "privateuseone")


def _autocast_dtypes() -> dict[str, torch.dtype]:
    """The dtype of each device type for which autocast is enabled in this thread."""
    enabled = filter(torch.is_autocast_enabled, _AUTOCAST_DEVICES)
    return {device: torch.get_autocast_dtype(device) for device in enabled}


@contextlib.contextmanager
def no_autocast() -> Iterator[None]:
    """Disable autocast for all device types."""
    with contextlib.ExitStack() as stack:
        for device in _autocast_dtypes():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _thread_settings(autocast: Mapping[str, torch.dtype], default_device: torch.device) -> Iterator[None]:
    """Enter these in a new thread, which inherits neither."""
    with contextlib.ExitStack() as stack:
        for device, dtype in autocast.items():
            # not cached: a copy of a weight from before its correction might be in the cache
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        if default_device != torch.get_default_device():
            stack.enter_context(default_device)
        yield


class PausedForward(threading.Thread):
    """One forward, which halts at each stop; autocast and the default device are those of its creator."""

    def __init__(self, forward: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._forward = forward
        self._settings = _thread_settings(_autocast_dtypes(), torch.get_default_device())
        self._go, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._is_left = False
        self._error: BaseException | None = None
        self.stop = -1  # the number of the stop where it is
        self.value: Tensor | None = None  # what passes there
        self.is_over = False
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._is_left:
                with torch.no_grad(), self._settings:
                    self._forward()
        except _Left:
            pass
        except BaseException as error:  # raised again where it is seen
            self._error = error
        self.is_over, self.value = True, None
        self._halted.release()

    def halt(self, stop: int, value: Tensor) -> None:
        """Called in the thread itself."""
        self.stop, self.value = stop, value
        self._halted.release()
        self._go.acquire()
        self.value = None
        if self._is_left:
            raise _Left

    def reach(self, stop: int) -> Tensor | None:
        """What passes at this stop; None if the forward does not come there (any more).  A number beyond
        the last stop runs it to its end."""
        while self.stop < stop and not self.is_over:
            self._advance()
            if self._error is not None:
                raise self._error
        return self.value if self.stop == stop else None

    def leave(self) -> None:
        self._is_left = True
        while not self.is_over:
            self._advance()
        self.join()

    def _advance(self) -> None:
        self._go.release()
        self._halted.acquire()


@contextlib.contextmanager
def paused_forwards(
    forwards: Sequence[Callable[[], Any]], stops: Sequence[nn.Module]
) -> Iterator[list[PausedForward]]:
    """A paused for each forward; it halts before each of the stops, with the input of that layer."""

    def halt(number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        paused = threading.current_thread()
        if isinstance(paused, PausedForward):
            paused.halt(number, first_tensor(args, kwargs))

    with contextlib.ExitStack() as stack:
        for number, module in enumerate(stops):
            hook = functools.partial(halt, number)
            stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        started = [PausedForward(forward) for forward in forwards]
        for paused in started:
            stack.callback(paused.leave)
        yield started
