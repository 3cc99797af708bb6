"""Kubernetes: the node agent, which gives the pods that a policy selects their door."""
