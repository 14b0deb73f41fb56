"""Folders and manifests of images, decoded once into a file that processes share."""
