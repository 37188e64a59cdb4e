"""For users' tests and deploys: do these histories still fit this code?"""

from harvest.testing.replayer import Replayed, Replayer

__all__ = ["Replayed", "Replayer"]
