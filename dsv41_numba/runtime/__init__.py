"""Where and how kernels run: `backend` picks the machine, `emulator` is the one that needs no GPU."""
