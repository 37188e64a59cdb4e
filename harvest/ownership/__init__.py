"""Who owns which partition, and for how long it may believe so.

A *pool* is a task queue, or a queue and a build for pinned runs (`orders@v7`). Each pool has 512 partitions; each partition
names its owner and an epoch that grows with each acquisition. A worker registers once per identity and gets one *tenure* row
per commit connection, and one (connection -1) for everything else. All state is in the hub; a worker's memory is a copy that
it may have to throw away.

**States of a partition**, as its owner sees it:

    free ──acquire──▶ held ──surplus──▶ leaving ──no decision in flight──▶ free
                       │                   │
                       └─────── fenced ────┴──▶ free, with nothing said to the old owner

**States of a worker**: active ─▶ draining ─▶ stopped (a graceful stop); active or draining ─▶ fenced ─▶ stopped (peers took
over). A process that finds itself fenced drops all it holds and registers anew.

**Invariants**

1. A commit locks its tenure's row FOR SHARE, requires that it is not fenced and in the hub's mode, and that each partition of
   its batch has this owner and epoch, in the statement that writes. Acquiring locks the tenure (-1) the same way.
2. Whoever takes over first sets `fenced` on all tenures of the old owner, which waits for its commits and acquisitions in
   flight; only then, in a later statement, does it free the partitions. So after a take-over nothing of the old owner lands.
3. The primary key (execution, decision) is the second wall.
4. A worker is its lease: renewed each second by a thread with a connection of its own, which also holds the session's advisory
   lock. The lock is taken before the worker is visible, so no peer takes a newcomer for dead.
5. An owner distrusts itself before its lease ends: at 0.8 of it, on its monotonic clock, from *before* the renewal was sent.
6. All owners of a pool register the same types (those of a pinned pool run the same build and Python). One worker of a queue at
   a time is admitted; who differs hears from whom and how, stands by, and is admitted when the others are gone.

**Shares.** The target is ceil(512 / live owners) per pool, a live owner being one that is admitted and scanned within 3 s.
Below it an owner takes what is free; above it by more than one it stops taking work in the surplus (`leaving`), and releases
what has no decision in flight one scan later. A graceful stop releases everything in one statement while activities still
run, and wakes the peers. A fence wakes them, too, each for its part.

| what happens | what the others see | what holds |
| --- | --- | --- |
| crash (SIGKILL, OOM) | the session ends, its lock is free | the next scan of any peer fences, frees, wakes; about a second |
| stall (SIGSTOP, a frozen VM) | the lease lapses after its 10 s | fenced; awake, it is refused and starts over |
| code that blocks the loop | nothing: the thread renews | named after 2 s, broken off after a lease; else it is given up |
| cut network | lock free or lease lapsed, whichever comes first | as a crash; cut for a moment, the lock is taken again |
| slow renewal | the lease may lapse | self-distrust comes first: 0.8 of it, from before it was asked for |
| clock jump, wrong clock | nothing | leases are on the hub's clock, trust on the monotonic, timers on the hub's time |
| database restart | all locks free, leases may have lapsed | nobody is called dead within 3 s of a start or of an outage |
| database away for long | as above | residents stay; nothing is decided; commits in flight are asked after |
| two acquirers | rows are locked, the other skips them | each partition has one owner; a lost answer is asked for again |
| an acquirer that was just fenced | it holds nothing | its acquisition and the fence lock the same row, one of them first |
| a process stopped inside a transaction | a locked row | our transactions end when idle for 10 s (2 s for the admission) |
| an owner forgotten with partitions | nothing | orphans are looked for each 10 s |
| a peer that differs in types | its admission is refused | it stands by and says so; see `harvest owner status` |
| the hub is switched | tenures carry the mode | commits of the old mode are refused; workers follow within a scan |

Rooms: `term` (lease arithmetic, pure) · `assignment` (shares, admission, pure) · `share` (what is owned of one pool) · `lease`
(the thread) · `watchdog` (what holds the loop) · `keeper` (the scan).
"""
