"""What `fedtilt deploy` needs besides the apps: projects, certificates, processes, a cluster on one machine."""
