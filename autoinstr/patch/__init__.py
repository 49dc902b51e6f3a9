"""Finding join points and installing patches: import hooks, targets, wrappers, and the ledger of what was done."""
