"""`python -m scheduler_service`: the scheduler and the commands around its state."""

from __future__ import annotations

from scheduler_service.commands.main import main

if __name__ == "__main__":
    main()
