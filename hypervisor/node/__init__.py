"""The daemon: wires the rooms together and owns the state of the node.

In come inventories of the gpu room, commands of the rpc room and the allocations; out go immutable snapshots, which
every consumer reads. NodeState is the only writer of the state, the trio main thread the only place where it changes.
Decisions (derive, conditions, changes) are pure; effects (lock, identity, signals, notify) are thin.
"""
