"""The Kubernetes store, and what of a cluster the aggregator watches.

In come the registry's objects; out go GPU, GPUNode, GPUPool and TensorFusionCluster objects by server-side apply, each
field with one owner, and events. In come Node labels, pools, the hypervisor's Pods and the driver's probe Jobs. Of two
replicas the holder of a Lease writes.

    client (requests) <- store, pools, crashes, probes, leader; objects, restoring, event_objects are pure
"""
