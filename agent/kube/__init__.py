"""Everything that talks to Kubernetes. Comes with the cluster mode; standalone needs none of it."""
