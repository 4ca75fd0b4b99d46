"""What agents measured of running jobs, kept as facts and read as rows of the profile schema."""
