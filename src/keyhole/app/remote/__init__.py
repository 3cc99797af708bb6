"""Sandboxes on other machines: their doors, and the gateway's side of them."""
