until states=$(kubectl get jobsets --namespace="$1" --selector="$2" --output=jsonpath="$3") &&
    [[ $states != *"<>"* ]]; do
    sleep "${POLL:-60}"
done
kubectl patch --filename="$4" --type=merge --patch='{"spec": {"suspend": false}}'
