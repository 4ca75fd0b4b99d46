"""Kubernetes: read and told over its API; as pods' scheduler, as their adviser, or as an extender of kube-scheduler."""
