"""Who owns which partition, and for how long it may believe so.

A worker registers once per process start and gets one *tenure* row per commit connection. A *partition*
names its owner and an epoch that grows with each acquisition. A commit locks its tenure row FOR SHARE and
checks owner and epoch, in the same statement that writes; whoever takes over first sets `fenced` on the
tenure rows, which waits for the commits in flight, and then moves the partitions. So after a take-over
nothing of the old owner can land, whatever it believes.

How a dead owner is noticed, fastest first:

* its session is gone: each worker holds an advisory lock on its LISTEN connection; a peer that can take that
  lock knows that the process or its connection died. A wrong guess is harmless: it costs a fence;
* its lease lapsed (10 s): for hosts that vanish without closing their sockets.

| what happens | what holds |
| --- | --- |
| crash (SIGKILL) | the session closes at once; the next scan of a peer fences, acquires, decides |
| stall (SIGSTOP) past the lease | it is fenced; resumed, its commit is refused and it drops what it held |
| slow renewal | the owner stops deciding before its lease ends, by its own monotonic clock, counted from before it asked |
| clock jump | leases live on the hub's clock, self-distrust on the monotonic clock: neither jumps with the wall clock |
| database restart | all sessions break; locks are taken again on reconnect, tenures stay valid |
| two acquirers | the fence and the acquisition are row updates: one of them finds nothing left to take |

Rooms: `term` (lease arithmetic, pure) · `keeper` (the loop). One worker owns all free partitions of its
pool; workers beside it stand by and take over. Shares for many owners come on top of the same rows.
"""
