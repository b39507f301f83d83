"""Programs of Triton's interpreter in turn, as if they were on a device at once.

It runs one after the other, so one that waits for another would wait for ever. Here each has a
thread, of which one runs at a time; at each atomic operation the next is drawn. So an order of
events that a device could have is tried with every seed, if each thread's stores are seen in its
order: what a device may reorder beyond that is not.

To be imported in a process of its own, with ``TRITON_INTERPRET=1``.
"""

import inspect
import random
import threading

from triton.runtime import interpreter

#: Of the order in which programs run.
SEED = 0

builder = interpreter.interpreter_builder
_atomic = builder.create_atomic_rmw


class Together:
    """Run the programs of a grid in turn; ``seed`` draws the order."""

    def __init__(self, programs, run, seed):
        self.draw, self.run, self.failure = random.Random(seed), run, None
        self.turns = [threading.Event() for _ in range(programs)]
        self.alive, self.done = set(range(programs)), threading.Event()
        self.switches = 0

    def __call__(self):
        """All of them, to their end."""
        threads = [threading.Thread(target=self._program, args=(i,)) for i in self.alive]
        for thread in threads:
            thread.start()
        self._next()
        self.done.wait()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _next(self):
        if not self.alive:
            self.done.set()
            return
        self.current = self.draw.choice(sorted(self.alive))
        builder.set_grid_idx(self.current, 0, 0)
        self.turns[self.current].set()

    def _program(self, i):
        self._wait(i)
        try:
            if self.failure is None:
                self.run()
        except Exception as error:  # noqa: BLE001 - the others must end, too
            self.failure = error
        self.alive.discard(i)
        self._next()

    def _wait(self, i):
        self.turns[i].wait()
        self.turns[i].clear()

    def atomic(self, *arguments):
        """Before an atomic operation any program may go on."""
        me = self.current
        self.switches += 1
        if self.switches > 100_000:
            raise RuntimeError("programs wait for each other for ever")
        self._next()
        self._wait(me)
        if self.failure is not None:
            raise RuntimeError("another program failed")
        return _atomic(*arguments)


class _Grid:
    """A kernel that runs its whole grid; the interpreter looks at it as at the kernel."""

    def __init__(self, function, run):
        self.__signature__, self.__globals__ = inspect.signature(function), function.__globals__
        self.__annotations__, self.__name__ = function.__annotations__, function.__name__
        self.run = run

    def __call__(self, **named):
        self.run(named)


def install():
    """From here on programs run together; the grids that did are added to what this returns."""
    grids, one_by_one = [], interpreter.GridExecutor.__call__

    def together(executor, *arguments, **options):
        function, (programs, *_) = executor.fn, executor.grid

        def run(named):
            builder.set_grid_dim(programs, 1, 1)
            grids.append(Together(programs, lambda: function(**named), SEED))
            builder.create_atomic_rmw = grids[-1].atomic
            try:
                grids[-1]()
            finally:
                builder.create_atomic_rmw = _atomic

        executor.fn, executor.grid = _Grid(function, run), (1, 1, 1)
        one_by_one(executor, *arguments, **options)

    interpreter.GridExecutor.__call__ = together
    return grids
