"""Pictures and pages made of numbers; who trains and predicts hands them over."""
