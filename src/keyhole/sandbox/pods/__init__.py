"""Pods of Kubernetes: the door in a pod's network, and the plugin that the node's runtime calls."""
