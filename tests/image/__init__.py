"""The image's steps and the package for hosts, in root directories of Debian, without a Docker engine."""
