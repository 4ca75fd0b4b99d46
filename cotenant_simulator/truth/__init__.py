"""What is true of jobs and machines, and what is predicted of it: two separate inputs."""
