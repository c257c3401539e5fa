"""The image's steps and the package for hosts, in root directories made by debootstrap, without a Docker engine."""
