"""The pool of windows inside the engine: a prefix hit takes its window from it instead of running its rows again.

The tricky idea: under encoder bounded replay the engine forgets the windows of a prompt that it has answered, and runs
the last 128 rows of every prefix hit again to have a window at all. Those rows look back on an empty window, so the
result differs from that of an uninterrupted run. A window that was copied while the prompt ran is exact, and spares the
rows. Scheduler and forward pass of the engine ask `pool.EnginePool` at five points, which `hooks` lists.
"""
