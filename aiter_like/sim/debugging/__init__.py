# SPDX-License-Identifier: MIT
"""The debugger of simulated launches, as a Python object: `with sim.debug(program) as debugger:`.

csrc/sim/DEBUGGER.md, "The debugger", describes it; `aiter-like sim debug` is its user interface. What is not there, or
cannot be done, is a DebuggerError in all of this folder, which says why.
"""

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiter_like.errors import DebuggerError
from aiter_like.sim.debugging.debugger import Controller
from aiter_like.sim.debugging.stops import Caught, Stop
from aiter_like.sim.debugging.wave_view import WaveView


class Debugger:
    """A program whose launches stop where they are asked to. Everything about breakpoints is in `control`.

    The program runs on a thread of its own, and only between a call of `run` or of what goes on and its return.

    Attributes:
        control: breakpoints and watches: `control.break_at("reduce.hip:12", wave=1, when="i == 70")`.
        stop: where it has stopped; None: it has not begun, or it has ended.
        result: what the program returned.
    """

    def __init__(self, program: Callable[[], Any]):
        self.control = Controller(self._on_stop)
        self.stop: Stop | None = None
        self.result: Any = None
        self._program = program
        self._told: queue.SimpleQueue[Stop | None] = queue.SimpleQueue()
        self._go_on: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._work), name="debugged program")
        self._started = False

    def run(self) -> Stop | None:
        """Starts the program.

        Returns:
            Its first stop, None: it has ended without one.
        Raises:
            DebuggerError: it runs already; or it has ended, and a breakpoint has never had a place.
            Exception: what the program raised.
        """
        if self._started:
            raise DebuggerError("the program runs already: go on with proceed, step, next, step_instruction or finish")
        self._started = True
        self._thread.start()
        return self._wait()

    def proceed(self) -> Stop | None:
        """Goes on to the next breakpoint. Returns, raises: as `run`."""
        self._require_stop()
        self.control.proceed()
        return self._resume()

    def step(self, count: int = 1, view: WaveView | None = None) -> Stop | None:
        """Goes on to the next source line of the wave that stopped, or of another. Returns, raises: as `run`."""
        self.control.step(view or self._require_stop().view, count)
        return self._resume()

    def next(self, count: int = 1, view: WaveView | None = None) -> Stop | None:
        """Like `step`, but not into functions."""
        self.control.next(view or self._require_stop().view, count)
        return self._resume()

    def step_instruction(self, count: int = 1, view: WaveView | None = None) -> Stop | None:
        """Goes on to the wave's next instruction. Returns, raises: as `run`."""
        self.control.step_instruction(view or self._require_stop().view, count)
        return self._resume()

    def finish(self, view: WaveView | None = None) -> Stop | None:
        """Goes on to the line after the call of the function that the wave is in. Returns, raises: as `run`."""
        self.control.finish(view or self._require_stop().view)
        return self._resume()

    def wave(self, workgroup: int, wave: int) -> WaveView:
        """Another wave than the one that stopped.

        Raises:
            DebuggerError: nothing has stopped, or that wave does not run.
        """
        view = self._require_stop().view
        return WaveView(view.machine, view.program, view.launch, workgroup, wave)

    def waves(self) -> list[WaveView]:
        """All waves of the workgroups that run or wait to go on."""
        view = self._require_stop().view
        return [self.wave(group["number"], wave["wave"]) for group in view.machine.groups() for wave in group["waves"]]

    def close(self) -> None:
        """Stops the launch that waits, if one does, and waits for the program's end."""
        if self._thread.is_alive():
            self.control.quit()
            self.stop = None
            self._go_on.put(None)
            self._thread.join()

    def _require_stop(self) -> Stop:
        if self.stop is None:
            raise DebuggerError("nothing has stopped: " + ("the program has ended" if self._started else "start it "
                                                           "with run"))
        return self.stop

    def _resume(self) -> Stop | None:
        self.stop = None
        self._go_on.put(None)
        return self._wait()

    def _wait(self) -> Stop | None:
        self.stop = self._told.get()
        if self.stop is not None:
            return self.stop
        self._thread.join()
        if failure := self.control.error or self._failure:
            raise failure
        missing = [one.describe() for one in self.control.breakpoints.values() if not one.placed]
        if missing:
            raise DebuggerError("the program has ended, and no launch had a place for: " + "; ".join(missing))
        return None

    def _on_stop(self, stop: Stop) -> None:
        if self.control.quitting:
            return
        self._told.put(stop)
        self._go_on.get()

    def _work(self) -> None:
        with Caught() as caught:
            self.result = self._program()
        self._failure = caught.error
        self._told.put(None)


@contextlib.contextmanager
def debug(program: Callable[[], Any], reports: bool = False, failures: bool = True) -> Iterator[Debugger]:
    """Debugs the launches that a program makes on the simulated MI300X.

        with sim.debug(lambda: kernel[grid](x, out, BLOCK=128)) as debugger:
            debugger.control.break_at("kernels.py:12", wave=0)
            stop = debugger.run()
            print(stop.line, stop.view.register("v0").numbers, stop.view.variable("offsets").numbers)
            debugger.proceed()

    Launches run on one thread, their workgroups one after the other and their waves in turns, so that a session
    repeats. A program that is left before its end fails at the launch that waits.

    Args:
        program: called without arguments on a thread of its own, once `run` is called.
        reports: also stop where a checker reports an error; the checkers are those of `sim.enabled` around it.
        failures: also stop where an instruction fails, before the launch does.
    Yields:
        The debugger.
    Raises:
        DebuggerError: another debugger is attached: there is one simulated device.
        BuildError: the simulator cannot be built or loaded.
    """
    debugger = Debugger(program)
    debugger.control.attach(reports, failures)
    try:
        yield debugger
    finally:
        debugger.close()
        debugger.control.detach()
