"""What is predicted and measured of jobs and pairs, as it is kept, asked for and refreshed."""
