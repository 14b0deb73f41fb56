"""What `fedtilt deploy` needs around the apps: projects, certificates, processes, a cluster on one machine."""
