"""What facts do to the state: events of jobs, nodes, predictions and the queue, and what agents observed."""
