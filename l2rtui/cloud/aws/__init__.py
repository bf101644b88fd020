"""Amazon's services: EKS clusters, the registry, prices. Only this package and the object store import boto3."""
