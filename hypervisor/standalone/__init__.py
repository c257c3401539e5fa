"""A command under limits without a daemon: `hypervisor exec --standalone`.

The process itself reads the GPUs, owns the limit files, accounts for dead processes, and takes the files away at the
end. Nothing coordinates several such commands: the sum of their shares is nobody's concern.
"""
