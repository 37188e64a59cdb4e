"""The composition root: definitions and config become running services.

worker      a worker: what its services need of each other, and its life
unit        what it runs for one pool
instrument  what it measures
sharded     one worker per hub, in one process
"""

from harvest.node.sharded import ShardedWorker
from harvest.node.worker import Worker

__all__ = ["ShardedWorker", "Worker"]
