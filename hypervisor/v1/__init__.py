"""The public gRPC API, generated from protos/hypervisor/v1 when the package is built."""
