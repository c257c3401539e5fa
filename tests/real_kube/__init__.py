"""A real API server on loopback, where K8S_BIN and ETCD_BIN name binaries and K8S_UP a program that starts them."""
